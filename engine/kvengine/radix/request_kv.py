"""What the cache knows of one admitted request."""

from dataclasses import dataclass

from kvengine.radix.node import RadixNode
from kvengine.radix.request_rows import RowId
from kvengine.radix.token_key import Namespace
from kvengine.request import Request


@dataclass(slots=True, eq=False)
class RequestKV:
    """Whose slots a request uses: first the tree's, up to `num_shared`, then its own, up to `num_slots`.

    With pages, `num_shared` is a multiple of the page: the open page is always the request's own.
    """

    request: Request
    namespace: Namespace | None
    node: RadixNode
    """Where the shared part ends in the tree; the request holds one lock there."""
    num_shared: int
    num_slots: int
    num_published: int = 0
    """Tokens up to which its inserts have been counted as hits."""
    row: RowId | None = None
    """Its row of the table; None until its first extension."""
