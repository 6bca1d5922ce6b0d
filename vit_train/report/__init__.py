"""Where results go: the terminal, TensorBoard, CSV and JSON. The loop knows none of them."""
