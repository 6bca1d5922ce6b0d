"""Output of results: terminal, TensorBoard, CSV and JSON. The loop depends on none of them."""
