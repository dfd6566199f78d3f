"""What the demo corpus is written from: sentences and questions (``*.psv``), and the people who fill them.

Each ``*_memories.psv`` and ``*_queries.psv`` file is a table with one hand-written record per line, columns separated
by ``|``. In a text, ``{slot}`` is a detail of the principal (`casts`), ``{@12}`` is the date of day 12 (``{@12w}`` its
weekday, ``{@12d}`` both, ``{@12m}`` its month), and ``[one way~another way]`` offers phrasings.
"""
