/* device/cuda/advice.h - what to do about errors of the CUDA runtime whose own text does not say
 * it. Which errors stay, and are reported by whatever call comes next: driver_types.h of the
 * toolkit. */
#ifndef BT_DEVICE_CUDA_ADVICE_H
#define BT_DEVICE_CUDA_ADVICE_H

#include <cuda_runtime_api.h>

/* Behind the runtime's text; "" where that is enough.  Static storage. */
static inline const char *bt_cuda_advice(cudaError_t err)
{
    switch ((int)err) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return ": a kernel launched before has failed, and the process can use the GPU no more "
               "(CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1: the next one to fail leaves a dump for "
               "cuda-gdb)";
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
        return ": a fault of the hardware, after which this process can use the GPU no more; "
               "nvidia-smi -q and the system's log (\"Xid\") say which, and whether the GPU has "
               "to be reset";
    case cudaErrorSystemNotReady:
        return ": a machine with NVSwitch needs the NVIDIA Fabric Manager (systemctl status "
               "nvidia-fabricmanager)";
    case cudaErrorSystemDriverMismatch:
        return ": the driver was changed while it was in use: restart the machine, or the "
               "container";
    default: return "";
    }
}

#endif
