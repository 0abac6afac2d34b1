"""Makes red models green by rewriting them, with proof. Public: ``rewrite_module``, which applies
rewrites to a PyTorch module; the ``mended_net.py`` that ``qnn-ci mend`` writes calls it."""

from ci.mend.rewrite import rewrite_module

__all__ = ["rewrite_module"]
