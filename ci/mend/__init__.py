"""Makes red models green by rewriting them, with proof.

Public: ``rewrite_module`` applies rewrites to a PyTorch module, and ``call_rewritten`` to what a
factory returns. The ``mended_net.py`` that ``qnn-ci mend`` writes calls the latter.
"""

from ci.mend.rewrite import call_rewritten, rewrite_module

__all__ = ["call_rewritten", "rewrite_module"]
