"""What the errors of MySQL and MariaDB mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final

from sqlalchemy import Connection

from queue_over_sql.sql.errors import ErrorKind, Errors

# Server errors: https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html
_KINDS = {
    # 3101, and 1180 or 1213 at COMMIT: it conflicted with another node's transaction.
    **dict.fromkeys((1205, 1213, 1020, 1180, 1684, 3058, 3101, 3572), ErrorKind.TRANSIENT),
    # 3989: ALTER DATABASE … READ ONLY = 1.
    **dict.fromkeys((1290, 1792, 1836, 1874, 3989), ErrorKind.READ_ONLY),
    **dict.fromkeys((1317, 1969, 3024), ErrorKind.CANCELLED),
    **dict.fromkeys((1053, 1077, 1079, 1080, 2002, 2003, 2006, 2013, 2055), ErrorKind.DISCONNECT),
    # 1047: a node of Galera that is not ready. 1927, 3169: ended by an administrator.
    **dict.fromkeys((4031, 1040, 1047, 1927, 3169), ErrorKind.DISCONNECT),
    # ProxySQL has no server to send it to.
    **dict.fromkeys((9001, 9002), ErrorKind.DISCONNECT),
    **dict.fromkeys((1062, 1586), ErrorKind.DUPLICATE),
    **dict.fromkeys((1264, 1366, 1406, 3819, 4025, 3140), ErrorKind.INVALID_VALUE),
    1146: ErrorKind.MISSING_TABLE,
    **dict.fromkeys((1050, 1061), ErrorKind.TABLE_EXISTS),
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), ErrorKind.FORBIDDEN),
}
# InnoDB undoes all of the transaction: deadlocks, changed rows, too many locks, other nodes.
_UNDOING: Final = frozenset((1213, 1020, 1206, 3101))
_TIMED_OUT: Final = 1205
# An option of the server refuses the statement, which its text names: also --secure-file-priv.
_OPTION: Final = 1290
_READS: Final = re.compile("read.only")
# The binary log cannot have what transactions at READ COMMITTED do.
_STATEMENTS_LOGGED: Final = 1665
# NULL, no default value, foreign keys, and SIGNAL in a trigger.
_ROW_REFUSED: Final = frozenset((1048, 1216, 1217, 1364, 1451, 1452, 1557, 1644, 1761, 1762))


class MySQLErrors(Errors):
    """By the servers' error codes."""

    value_hints: ClassVar[Mapping[int, str]] = dict.fromkeys(
        (3140, 3819, 4025), " (JSON with more than 100 nested levels, or 31 on MariaDB?)"
    )

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        code = _code(error)
        if code == _OPTION and not _READS.search(str(error)):
            return ErrorKind.OTHER
        return _KINDS.get(code, ErrorKind.OTHER)

    def undoes_transaction(self, connection: Connection, error: BaseException) -> bool:
        code = _code(error)
        on_timeout = self._features.undoes_on_timeout
        return code in _UNDOING or (code == _TIMED_OUT and on_timeout)

    def refuses_row_by(self, error: BaseException | None) -> bool:
        return _code(error) in _ROW_REFUSED

    def refusal_hint(self, error: BaseException | None) -> str:
        if _code(error) != _STATEMENTS_LOGGED:
            return ""
        return (
            " Queues need READ COMMITTED. An administrator can run SET GLOBAL binlog_format = "
            "'ROW', for connections that are opened from then on"
        )

    def value_hint(self, error: BaseException | None) -> str:
        return self.value_hints.get(_code(error), "")


def _code(error: BaseException | None) -> int:
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else 0
