"""python -m simlora.cli"""

from simlora.cli import main

if __name__ == "__main__":
    main()
