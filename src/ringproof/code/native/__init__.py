"""C++ and CUDA files, parsed by tree-sitter, with what it cannot read blanked first."""
