"""``config from``: the configuration of another program → ours, and the name of each key that is lost.

``foreign_files`` and ``foreign_keys`` read and know the other program's file, one module for each program fills a
``Draft``, and ``draft`` writes it. All of it is pure: the verb in ``commands.config`` reads the files.

* What is written and not named as lost offers what the other program offered, and nothing more. An entry whose
  selection cannot be written is in the file as a comment.
* What is written passes ``config check``.
"""
