// Package vpc takes the place of a cloud's SDK in the build of flannel, whose
// backend for that cloud is linked in and never used here: the SDK is large, and
// not every module proxy has it. It has just what that backend names, and fails.
package vpc

import "errors"

var errNoSDK = errors.New("built without the SDK of Tencent Cloud")

// Client does nothing.
type Client struct{}

// The requests and their parts.
type (
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		DestinationCidrBlock, GatewayType, GatewayId, RouteType *string
		RouteId                                                 *uint64
		Enabled                                                 *bool
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
	DescribeRouteTablesRequest  struct{ Filters []*Filter }
	DescribeRouteTablesResponse struct {
		Response struct{ RouteTableSet []*RouteTable }
	}
	RoutesRequest struct {
		RouteTableId *string
		Routes       []*Route
	}
)

// NewClientWithSecretId fails.
func NewClientWithSecretId(id, key, region string) (*Client, error) { return nil, errNoSDK }

// NewDescribeRouteTablesRequest and the others return empty requests.
func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}
func NewDeleteRoutesRequest() *RoutesRequest { return &RoutesRequest{} }
func NewCreateRoutesRequest() *RoutesRequest { return &RoutesRequest{} }

// DescribeRouteTables and the others fail.
func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errNoSDK
}
func (*Client) DeleteRoutes(*RoutesRequest) (any, error) { return nil, errNoSDK }
func (*Client) CreateRoutes(*RoutesRequest) (any, error) { return nil, errNoSDK }
