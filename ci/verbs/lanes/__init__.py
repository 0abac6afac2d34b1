"""The lanes: ways to judge models. ``lane`` runs any of them, and each other module has the row of
one: which cases it takes, and what lowers and runs them."""
