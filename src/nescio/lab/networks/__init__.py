"""Networks on images: build one, load its weights, keep it as a checkpoint."""
