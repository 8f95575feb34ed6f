"""C++ and CUDA: symbols of native code, through tree-sitter, as far as anchors need them."""
