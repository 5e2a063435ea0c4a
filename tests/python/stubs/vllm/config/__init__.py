# SPDX-License-Identifier: Apache-2.0
from vllm.config.vllm import VllmConfig as VllmConfig
