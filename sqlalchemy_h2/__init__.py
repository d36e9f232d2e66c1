"""SQLAlchemy dialect ``h2+jaydebeapi``: the H2 database, inside this process or on a server.

URLs::

    h2+jaydebeapi:///./folder/name              a file, relative to the working directory
    h2+jaydebeapi:////var/lib/app/name          a file, absolute
    h2+jaydebeapi:///~/name                     a file in the user's home folder
    h2+jaydebeapi:////data/name?AUTO_SERVER=TRUE  a file that several processes share
    h2+jaydebeapi:///mem:name                   memory of this process, until it ends
    h2+jaydebeapi://user:password@host:9092/./name  an H2 TCP server (``//name``: absolute path)

Query keys become H2 settings (``?CACHE_SIZE=65536``), except four that are read here: ``jar``
(path of the H2 jar), ``jvm`` (path of a Java home or of its ``libjvm``), ``jvm_args`` (more JVM
flags, separated by blanks) and ``transport`` (``tcp`` or ``ssl``). A ``;`` is refused anywhere
in a URL, because H2 would read what follows as further settings. The user is ``sa`` with an
empty password unless given.

Needed at run time: the Python packages of ``queue-over-sql[h2]``, an H2 jar (2.1.214 or newer)
and a Java runtime; :mod:`.jvm` says where both are looked for. The JVM starts once per process,
does not survive ``fork()``, and leaves SIGINT and SIGTERM to Python.

Unless the URL says otherwise every connection sets ``WRITE_DELAY=0`` (a commit has left the
process before it returns; H2's own default of 500 ms loses commits with a killed process),
``LOCK_TIMEOUT=10000`` ms and ``OPTIMIZE_REUSE_RESULTS=0`` (a race in older versions returns
stale results). The first and the last need admin rights: another user connects without them,
and is warned with :class:`.dbapi.DurabilityWarning` if commits are then delayed.
"""

from __future__ import annotations

from sqlalchemy.dialects import registry

from sqlalchemy_h2.dialect import H2Dialect

__all__ = ["H2Dialect", "dialect"]

dialect = H2Dialect

for _name in ("h2", "h2.jaydebeapi"):
    registry.register(_name, __name__, "H2Dialect")
