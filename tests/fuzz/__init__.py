"""Fuzzing of everything that is read from files: ``python -m tests.fuzz`` (``make fuzz``).

A case is a small directory of checkpoint files. Seeds are the golden files and checkpoints of odd states; cases are
made of them by edits of single fields, after which a forger computes all digests anew, and by edits of bytes, after
which nobody does. Each goes through the real readers in a process of its own, with limits of memory and time:

* whatever is raised is one of the library's errors;
* the live state is as it was if ``restore`` raises;
* bytes that were changed without new digests change nothing that is loaded;
* no file outside of the case is opened, and no module imported;
* nothing takes more memory or time than a case of this size may.

A case that ends in errors that no case before it has had, by type and place, becomes a seed. What breaks one of the
rules is a find, and kept.
"""
