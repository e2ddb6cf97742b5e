"""What a loaded run is asked for: answers, written by one writer."""
