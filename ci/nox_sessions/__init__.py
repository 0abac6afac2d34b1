"""What the sessions of noxfile.py run, and the Python environments that they run it in.

It works in the environment of ./nox, before anything is installed: only nox, the packages that nox
depends on and the standard library can be imported.
"""
