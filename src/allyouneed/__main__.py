"""python -m allyouneed"""

from allyouneed.cli import main

main()
