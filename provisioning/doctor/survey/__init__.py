"""Gather facts about files, tools, variables and devices. The checks judge them."""
