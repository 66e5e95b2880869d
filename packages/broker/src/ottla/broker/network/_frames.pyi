from ottla.broker.network._frames_py import FrameReader as FrameReader
from ottla.broker.network._frames_py import ReceiveBuffer as ReceiveBuffer
