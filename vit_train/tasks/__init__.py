"""What is learned: which model, which loss, which result. The loop knows none of them."""
