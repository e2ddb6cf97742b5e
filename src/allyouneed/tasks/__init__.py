"""What a run is for: data -> examples -> losses, and a trained model -> answers and scores."""
