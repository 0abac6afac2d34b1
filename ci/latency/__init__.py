"""Estimates how long a program takes on a SoC, from QNN's simulator and public measurements. The
simulator is part of QNN's compiler: it predicts cycles and memory traffic for a few SoCs."""
