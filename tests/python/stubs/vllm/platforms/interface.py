# SPDX-License-Identifier: Apache-2.0
from typing import NamedTuple


class DeviceCapability(NamedTuple):
    major: int
    minor: int
