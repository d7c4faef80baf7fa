# SPDX-License-Identifier: Apache-2.0
"""What the programs share that compare every model of transformers and write a list of them into a page."""

import logging
import warnings

import torch


class Block:
    """The part of a page between two comments that belongs to a program: its path, and its name in the second comment."""

    def __init__(self, path, name):
        self.begin = f"<!-- Written by {path} --write -->\n"
        self.end = f"<!-- End of what {name} writes -->\n"

    def replaced(self, text, written):
        """The page with other contents of the block."""
        before, rest = text.split(self.begin)
        return before + self.begin + "\n" + written + "\n" + self.end + rest.split(self.end)[1]


def quiet():
    """One thread for each process, and no warnings of models that nobody trained."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
