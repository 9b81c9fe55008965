// Package errors is in place of the SDK's; see package vpc next to it.
package errors

// TencentCloudSDKError is never returned.
type TencentCloudSDKError struct{}

// Error implements error.
func (*TencentCloudSDKError) Error() string { return "" }
