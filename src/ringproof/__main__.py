"""``python -m ringproof``: the form that ``torchrun -m`` needs."""

from ringproof.cli.main import main

if __name__ == "__main__":
    main()
