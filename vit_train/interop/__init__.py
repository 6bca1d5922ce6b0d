"""Exchange of weights with other libraries: `init_from=` reads them, `vit-export` writes them."""
