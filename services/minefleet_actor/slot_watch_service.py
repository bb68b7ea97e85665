"""The SlotsService: what an actor's slots do and show, for people who watch."""

from typing import Any

from minefleet.core.errors import UnavailableError
from minefleet.v1 import slots_service_pb2, slots_service_pb2_grpc
from minefleet_actor.slot_descriptions import SlotView


class SlotsServicer(slots_service_pb2_grpc.SlotsServiceServicer):
    """Answers once `view` is set."""

    def __init__(self) -> None:
        self.view: SlotView | None = None

    def ListSlots(  # noqa: N802
        self, request: slots_service_pb2.ListSlotsRequest, context: Any
    ) -> slots_service_pb2.ListSlotsResponse:
        """Answers as the proto says."""
        return slots_service_pb2.ListSlotsResponse(slots=self._seen().slots())

    def GetFrame(  # noqa: N802
        self, request: slots_service_pb2.GetFrameRequest, context: Any
    ) -> slots_service_pb2.GetFrameResponse:
        """Answers as the proto says."""
        frame = self._seen().frame(request.slot, before_failure=request.before_failure)
        return slots_service_pb2.GetFrameResponse(height=frame.shape[0], width=frame.shape[1], pixels=frame.tobytes())

    def _seen(self) -> SlotView:
        if self.view is None:
            raise UnavailableError("the environments have not been started yet")
        return self.view
