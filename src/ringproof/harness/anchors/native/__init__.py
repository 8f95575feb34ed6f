"""C++ and CUDA: finds symbols of native code with tree-sitter."""
