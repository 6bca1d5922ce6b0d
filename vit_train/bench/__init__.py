"""Speed of vit_train compared with other libraries, each in a process of its own."""
