"""What is done with runs: training, evaluation, export, results, pretrained weights."""
