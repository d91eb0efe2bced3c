"""Synthetic questions about a long text, after the kinds of RULER (Hsieh et al. 2024, arXiv 2404.06654), in words of our own.

    niah_single       one number hidden in monotonous noise
    niah_multikey_4   four of them, one is asked for (also _16): the others distract
    vt                variables assigned to each other in chains: which hold a value?
    fwe               which three of many made-up words are most frequent?
    kv_flat           which of two words is more frequent? No key matters more than another, so attention is flat

A question is drawn first; its text is then a function of the number of filler units, so that it can be made as long as is wanted.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

NOISE = (
    "The river runs past the old mill.",
    "Clouds drift over the hills.",
    "A dog sleeps beside the open door.",
    "Someone waters the garden in the evening.",
    "Nothing else happens on that day.",
)
NAMES = (
    "amber", "anchor", "basket", "beacon", "bridge", "candle", "canyon", "castle", "copper", "cotton", "desert", "dragon", "engine",
    "falcon", "forest", "garlic", "ginger", "hammer", "harbor", "island", "jacket", "jungle", "kettle", "ladder", "lemon", "magnet",
    "marble", "meadow", "mirror", "monkey", "needle", "orange", "oyster", "parrot", "pepper", "pillow", "planet", "pocket", "rabbit",
    "ribbon", "rocket", "saddle", "silver", "spider", "statue", "temple", "ticket", "tunnel", "turtle", "velvet", "violin", "window",
)  # fmt: skip
MARKERS = (("red", "blue"), ("cat", "dog"), ("tea", "coffee"), ("sun", "moon"), ("left", "right"), ("gold", "iron"))


@dataclass(frozen=True)
class Question:
    """A question about a text of any length.

    Attributes:
        text: the text as a function of the number of filler units.
        question: what is asked after it.
        prefix: how the answer begins; it is given.
        answer: what must follow, with its leading space.
        references: texts that a right answer contains.
    """

    text: Callable[[int], str]
    question: str
    prefix: str
    answer: str
    references: tuple[str, ...]


def needles(rng: np.random.Generator, keys: int) -> Question:
    """`keys` names with four-digit numbers at random places in noise; one is asked for.

    Raises:
        ValueError: if `keys` is not between 1 and the number of names.
    """
    if not 1 <= keys <= len(NAMES):
        raise ValueError(f"keys must lie in 1..{len(NAMES)}, got {keys}")
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:keys]]
    numbers = [str(n) for n in rng.permutation(9000)[:keys] + 1000]
    places = np.sort(rng.random(keys))
    hidden = [f"The secret number of {name} is {number}." for name, number in zip(names, numbers, strict=True)]
    asked = int(rng.integers(keys))

    def text(units: int) -> str:
        lines = [NOISE[i % len(NOISE)] for i in range(units)]
        for place, line in sorted(zip((places * (units + 1)).astype(int), hidden, strict=True), reverse=True):
            lines.insert(int(place), line)
        return "Remember the secret numbers in this text.\n\n" + " ".join(lines)

    name, number = names[asked], numbers[asked]
    return Question(text, f"What is the secret number of {name}?", f"The secret number of {name} is", f" {number}", (number,))


def variable_tracking(rng: np.random.Generator, chains: int = 3) -> Question:
    """Chains of two or three assignments between lines of noise; asked for the variables that hold the first chain's value."""
    letters = list(string.ascii_uppercase)
    hops = int(rng.integers(2, 4))
    names = [a + b for a, b in zip(rng.permutation(letters), rng.permutation(letters), strict=True)][: chains * (hops + 1)]
    values = [str(n) for n in rng.permutation(90000)[:chains] + 10000]
    per_chain = [names[i * (hops + 1) : (i + 1) * (hops + 1)] for i in range(chains)]
    order = rng.permutation(np.repeat(np.arange(chains), hops + 1))  # chains interleave, each in its own order
    places = np.sort(rng.random(len(order)))
    seen = [0] * chains
    hidden = []
    for chain in order:
        at = seen[chain]
        source = values[chain] if at == 0 else per_chain[chain][at - 1]
        hidden.append(f"VAR {per_chain[chain][at]} = {source}.")
        seen[chain] += 1

    def text(units: int) -> str:
        lines = [NOISE[i % len(NOISE)] for i in range(units)]
        for place, line in list(zip((places * (units + 1)).astype(int), hidden, strict=True))[::-1]:
            lines.insert(int(place), line)
        return "Keep track of the variables in this text. A variable that is set to another one has its value.\n\n" + " ".join(lines)

    found = tuple(per_chain[0])
    return Question(
        text,
        f"Which variables have the value {values[0]}?",
        f"The variables with the value {values[0]} are:",
        " " + ", ".join(found),
        found,
    )


def frequent_words(rng: np.random.Generator, words: int = 30, exponent: float = 1.5) -> Question:
    """Made-up words whose frequencies fall by a power law, shuffled; asked for the three most frequent ones."""
    names: list[str] = []
    while len(names) < words:
        name = "".join(rng.choice(list(string.ascii_lowercase), 5))
        if name not in names:
            names.append(name)
    shuffle = int(rng.integers(2**31))

    def text(units: int) -> str:
        counts = zipf_counts(units, words, exponent)
        listed = np.repeat(np.arange(words), counts)
        return "Read this list of made-up words.\n\n" + " ".join(names[i] for i in np.random.default_rng(shuffle).permutation(listed))

    top = tuple(names[:3])
    return Question(
        text, "Which three words are the most frequent in the list?", "The three most frequent words are:", " " + ", ".join(top), top
    )


def zipf_counts(units: int, words: int, exponent: float) -> np.ndarray:
    """How often each of `words` occurs among about `units`: falling as rank^-exponent, the first four all different, each at least once.

    Example:
        >>> zipf_counts(100, 5, 1.0).tolist()
        [44, 22, 15, 11, 9]
    """
    shares = np.arange(1, words + 1, dtype=float) ** -exponent
    counts: np.ndarray = np.maximum(np.round(units * shares / shares.sum()).astype(int), 1)
    for i in range(min(3, words - 1), 0, -1):
        counts[i - 1] = max(counts[i - 1], counts[i] + 1)
    return counts


def majority(rng: np.random.Generator, share: float = 0.7) -> Question:
    """Two words in random order, one of them with this share; asked for the more frequent one.

    Raises:
        ValueError: unless 0.5 < share <= 1.
    """
    if not 0.5 < share <= 1:
        raise ValueError(f"share must lie in (0.5, 1], got {share}")
    pair = MARKERS[int(rng.integers(len(MARKERS)))]
    often = int(rng.integers(2))
    shuffle = int(rng.integers(2**31))

    def text(units: int) -> str:
        many = max(round(share * units), units // 2 + 1)
        listed = [pair[often]] * many + [pair[1 - often]] * (units - many)
        return "Read this list of words.\n\n" + " ".join(np.random.default_rng(shuffle).permutation(listed))

    word = pair[often]
    return Question(
        text, f"Which word is more frequent in the list, {pair[0]} or {pair[1]}?", "The more frequent word is", f" {word}", (word,)
    )


TASKS: dict[str, Callable[[np.random.Generator], Question]] = {
    "niah_single": lambda rng: needles(rng, 1),
    "niah_multikey_4": lambda rng: needles(rng, 4),
    "niah_multikey_16": lambda rng: needles(rng, 16),
    "vt": variable_tracking,
    "fwe": frequent_words,
    "kv_flat": majority,
}


def draw(task: str, rng: np.random.Generator) -> Question:
    """A question of a task.

    Raises:
        ValueError: for an unknown task, listing the known ones.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    return TASKS[task](rng)


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the prediction, case-insensitively.

    Raises:
        ValueError: if there are no references.

    Example:
        >>> string_match_all("AB, cd and EF", ("AB", "CD", "GH", "IJ"))
        0.5
    """
    if not references:
        raise ValueError("references must hold at least one text, got none")
    return sum(r.lower() in prediction.lower() for r in references) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """1 if any of the references occurs in the prediction, else 0, case-insensitively.

    Raises:
        ValueError: if there are no references.
    """
    if not references:
        raise ValueError("references must hold at least one text, got none")
    return float(any(r.lower() in prediction.lower() for r in references))
