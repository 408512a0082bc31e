"""Petastorm's readers over bowstring: code written against ``petastorm`` moves by changing one import.

>>> from bowstring.petastorm import make_reader  # was: from petastorm import make_reader
>>> with make_reader("file:///data/photos", num_epochs=1) as reader:  # doctest: +SKIP
...     for row in reader:
...         show(row.image)

Names, signatures and results are Petastorm's; reading, decoding and the metadata are bowstring's, so neither pyarrow nor Spark is
needed, and no code in a dataset is executed. The same modules exist below this one: ``bowstring.petastorm.pytorch`` and so on.
``docs/from-petastorm.md`` lists the differences, and the faster native loaders.
"""

from bowstring.petastorm.errors import NoDataAvailableError
from bowstring.petastorm.reader import make_batch_reader, make_reader
from bowstring.petastorm.transform import TransformSpec

__all__ = ["NoDataAvailableError", "TransformSpec", "make_batch_reader", "make_reader"]
