package engine

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/kube"
)

// Workloads returns the kinds that run agents, expose them or limit them.
func Workloads() []client.ObjectList {
	return []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ResourceQuotaList{}, &policyv1.PodDisruptionBudgetList{}}
}

// Accounts returns the kinds that Workloads need until they have ended: an agent that is being removed reads why, and
// cleans its node. If it restarts until then, it mounts its keys.
func Accounts() []client.ObjectList {
	return []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.RoleList{}, &corev1.ServiceAccountList{},
		&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{}, kube.SecretNames(),
	}
}
