"""Curves of a run over REST: a range of some scalars in few points, or all points as a CSV file."""

from collections.abc import Iterator

from tornado.iostream import StreamClosedError

from nbtrain.lab.server.requests import NbtrainHandler, RequestError
from nbtrain.monitor.run.metrics_range import (
    AXES,
    MOST_POINTS,
    MOST_TAGS,
    POINTS,
    CurvesRequest,
    csv_pieces,
    metrics,
)

# The curves that the panel shows first.
TAGS = "loss,validation_loss,learning_rate,grad_norm,tokens_per_second"


class NamedScalarsHandler(NbtrainHandler):
    """Shared base of routes that name scalars: ?tags=loss,learning_rate."""

    def names(self) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(part for part in self.get_argument("tags", TAGS).split(",") if part))
        if len(names) > MOST_TAGS:
            raise RequestError(
                400,
                f"tags has {len(names):,} names; a request can have at most {MOST_TAGS}. "
                "Send several requests, or omit tags for the curves that every run has.",
            )
        return names


class MetricsHandler(NamedScalarsHandler):
    """GET run/<name>/metrics?tags=&x=step|tokens|time&from=&to=&points=: curves in a range of x.

    The response is the result of metrics() in monitor/run/metrics_range.py.
    """

    async def get(self, name: str) -> None:
        view, x = await self.view(name), self.get_argument("x", "step")
        if x not in AXES:
            raise RequestError(400, f"x = {x[:80]!r} must be one of {', '.join(AXES)}.")
        points = self.number("points", POINTS, MOST_POINTS)
        request = CurvesRequest(self.names(), x, self.real("from"), self.real("to"), max(2, points or 0))
        self.answer(await self.read(metrics, view, request))
        self.catch_up(view)


class CsvHandler(NamedScalarsHandler):
    """GET run/<name>/metrics.csv?tags=: name, step, tokens, time, value of every point.

    Without tags, the file has every curve of the run.
    """

    async def get(self, name: str) -> None:
        view, names = await self.view(name), self.names() if self.get_argument("tags", "") else None
        pieces = await self.read(csv_pieces, view, names)
        # Read the first chunk now, so that an unknown name is refused before the response begins.
        piece = await self.read(_next, pieces)
        self.set_header("Content-Disposition", f'attachment; filename="{name}-metrics.csv"')
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        try:
            while piece is not None:
                self.write(piece)
                await self.flush()
                piece = await self.read(_next, pieces)
        except StreamClosedError:
            return
        self.finish(set_content_type="text/csv; charset=utf-8")


def _next(pieces: Iterator[str]) -> str | None:
    return next(pieces, None)
