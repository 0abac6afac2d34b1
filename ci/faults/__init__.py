"""Find faults of QNN's compiler with generated graphs, shrink them, and recognize known faults."""
