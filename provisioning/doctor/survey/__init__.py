"""Gather facts about files, tools, variables and devices, without judging them."""
