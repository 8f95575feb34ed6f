"""C++ and CUDA files, parsed by tree-sitter after what it stumbles over is blanked."""
