"""Analyses of models, written once for both lanes: on a neutral form of a model's graph, which the
readers of the lanes fill, and on arrays."""
