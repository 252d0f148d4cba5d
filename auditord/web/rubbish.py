"""What is logged of clients that do not speak HTTP: one line, since any port scanner can send rubbish all day."""

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

_LONGEST: Final = 200


class OneLine(logging.Filter):
    """Makes a line of level INFO of aiohttp's traceback about a request that it could not parse."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; every other one is left alone."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        said = " ".join(error.message.split())[:_LONGEST]
        record.msg, record.args = f"{record.getMessage()}: it is no HTTP: %s", (said,)
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, logging.getLevelName(logging.INFO)
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)


server_log: Final = logging.getLogger(__name__)
server_log.addFilter(OneLine())
