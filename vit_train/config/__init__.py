"""Every setting, declared once. Nothing here imports torch."""
