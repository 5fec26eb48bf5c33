def bind(address: int, address_ex: int = 0) -> None: ...

class Launch:
    def __init__(
        self,
        function: int,
        grid: tuple[int, int],
        threads: int,
        shared: int,
        arguments: bytes,
        early: bool = False,
    ) -> None: ...
    def __call__(
        self,
        stream: int,
        source: int,
        out: int = 0,
        maximum: int = 0,
        total: int = 0,
        workspace: int = 0,
        reference: int = 0,
        grad: int = 0,
        grad_in: int = 0,
    ) -> int: ...
