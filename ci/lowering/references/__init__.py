"""What eager models compute: the references that programs are judged by."""
