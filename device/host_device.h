/* device/host_device.h - BT_HOST_DEVICE: a function that the host and its kernels both compile from
 * one place, so that they cannot come to differ. */
#ifndef BT_DEVICE_HOST_DEVICE_H
#define BT_DEVICE_HOST_DEVICE_H

#ifdef __CUDACC__
#define BT_HOST_DEVICE static inline __host__ __device__
#else
#define BT_HOST_DEVICE static inline
#endif

#endif
