"""Speed of vit_train compared with other libraries, each alone in a process of its own."""
