"""Where code is: definitions of symbols in Python, C++ and CUDA files, and quoted lines."""
