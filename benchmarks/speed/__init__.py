"""Speed, memory and growth, each side by side with a peer in one run."""
