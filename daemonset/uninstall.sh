#!/bin/sh
# Remove what nodeagent has written to the API server: its labels, taints, conditions and annotations of Nodes, its
# HyperNodes, its NodeFeatureGroups, its ConfigMap for Slurm, its Lease, its ResourceSlices, and the definition of NodeLinks with all reports.
#   daemonset/uninstall.sh [NAMESPACE [LABEL-PREFIX …]]
# Run it after `kubectl delete -k` of what was applied or `helm uninstall`, with the rights of a cluster administrator. With components/attach
# run it before that too: it names the pods that have netdevs of VFs, which end first. Labels that
# people set (nodeagent.io/agent, nodeagent.io/pool) and objects of other owners stay. Labels with further keys of the fabric
# configuration go too, where the API server knows that the controller wrote them. A LABEL-PREFIX, such as
# network.topology.nvidia.com/, removes all labels with it, whoever wrote them. The taint nodeagent.io/starting is
# removed from all Nodes, because no controller is left that would; node groups must not create Nodes with it any more.
set -eu

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
    exit 0
    ;;
esac
refuse() {
    echo "\"$1\" is no $2. Usage: daemonset/uninstall.sh [NAMESPACE [LABEL-PREFIX …]]" >&2
    exit 2
}

namespace=${1-nodeagent}
case $namespace in
"" | *[!a-z0-9-]* | -*) refuse "$namespace" "name of a namespace" ;;
esac
labels='topology\.nodeagent\.io/[^ ]*|nodeagent\.io/(link-degraded|gpu-mem-largest|gpu-mem-enforcement)'
taints='nodeagent\.io/(links-down|device-failed|links-below-minimum|starting):[^ ]*'
conditions='nodeagent\.io/(LinkHealthy|GpuHealthy|FabricLinks)'
# Volcano's own device plugin writes the same annotations, so only those of the agents count.
annotations='(nodeagent\.io/maintenance|f:volcano\.sh/node-vgpu-(register|handshake))'
[ $# -eq 0 ] || shift
for prefix; do
    # A part of a name, or none, would remove the labels of other programs.
    case $prefix in
    *[!a-z0-9./-]* | [!a-z0-9]* | */?* | *[!a-z0-9]/) refuse "$prefix" "prefix of labels such as example.com/" ;;
    kubernetes.io/ | *.kubernetes.io/ | k8s.io/ | *.k8s.io/) refuse "$prefix" "prefix of ours: Kubernetes needs its labels" ;;
    */) labels="$labels|$(printf '%s' "$prefix" | sed 's/\./\\./g')[^ ]*" ;;
    *) refuse "$prefix" "prefix of labels such as example.com/" ;;
    esac
done

# A pod with a claim ends only while its driver runs, so its agent must be there when the pod is deleted.
dra=$(kubectl get --raw /apis)
case $dra in
*'"resource.k8s.io/v1"'*) dra=$(kubectl get --raw /apis/resource.k8s.io/v1) ;;
*) dra= ;;
esac
case $dra in
*'"resourceclaims"'*)
    held=$(kubectl get resourceclaims.resource.k8s.io --all-namespaces --output go-template='{{range .items}}
{{- $claim := .metadata}}{{with .status}}{{with .allocation}}{{with .devices}}{{range .results}}
{{- if eq .driver "nodeagent.io"}}{{$claim.namespace}}/{{$claim.name}}{{"\n"}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}' |
        sort -u)
    if [ -n "$held" ]; then
        echo "Claims hold devices of nodeagent; delete their pods first, while the agents run. Found:" $held >&2
        exit 1
    fi
    ;;
esac

# The netdevs of a pod go back to the host under their names there only while `nodeagent attach` runs.
attached=$(kubectl get pods --all-namespaces --field-selector status.phase=Running \
    --selector app.kubernetes.io/part-of=nodeagent,app.kubernetes.io/component=attach \
    --output go-template='{{range .items}}{{.metadata.namespace}} {{.metadata.name}}{{"\n"}}{{end}}' |
    while read -r of pod; do
        kubectl exec --namespace "$of" "$pod" -- nodeagent attach --list --json </dev/null ||
            echo "\"namespace\": \"$of\", \"pod\": \"$pod (it does not answer)\""
    done | grep -o '"namespace": "[^"]*", "pod": "[^"]*"' | sed 's/[^:]*: "\([^"]*\)"[^:]*: "\(.*\)"$/\1\/\2/' | sort -u)
if [ -n "$attached" ]; then
    echo "Pods have netdevs of VFs; delete them first, while nodeagent attach runs. Found:" $attached >&2
    exit 1
fi

# Agents and controller would write their marks again.
# In every namespace, because NAMESPACE may be wrong.
running=$(kubectl get daemonsets,deployments --all-namespaces --selector app.kubernetes.io/part-of=nodeagent \
    --output go-template='{{range .items}}{{.metadata.namespace}}/{{.metadata.name}} {{end}}')
if [ -n "$running" ]; then
    echo "nodeagent still runs; remove it first: kubectl delete -k daemonset/ or the kustomization that was applied, or helm" \
        "uninstall. Found: $running" >&2
    exit 1
fi

# One line for each label, taint, condition and own annotation of each Node. In a variable, because a pipe hides a failure
# of kubectl.
marks=$(kubectl get nodes --show-managed-fields --output go-template='{{range .items}}{{$node := .metadata.name}}
{{- range $key, $value := .metadata.labels}}label {{$node}} {{$key}}{{"\n"}}{{end}}
{{- range .spec.taints}}taint {{$node}} {{.key}}:{{.effect}}{{"\n"}}{{end}}
{{- range .status.conditions}}condition {{$node}} {{.type}}{{"\n"}}{{end}}
{{- range $key, $_ := .metadata.annotations}}annotation {{$node}} {{$key}}{{"\n"}}{{end}}
{{- range .metadata.managedFields}}{{if or (eq .manager "nodeagent") (eq .manager "nodeagent-controller")}}
{{- with .fieldsV1}}{{with index . "f:metadata"}}{{with index . "f:labels"}}
{{- range $key, $_ := .}}label {{$node}} {{$key}}{{"\n"}}{{end}}{{end}}{{with index . "f:annotations"}}
{{- range $key, $_ := .}}annotation {{$node}} {{$key}}{{"\n"}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}')
printf '%s\n' "$marks" |
    { grep -E "^(label [^ ]+ ($labels|f:[^ ]+)|taint [^ ]+ ($taints)|condition [^ ]+ ($conditions)|annotation [^ ]+ $annotations)\$" ||
        true; } |
    sed 's/^\(label [^ ]*\) f:/\1 /' | sort -u |
    while read -r what node mark; do
        case $what in
        label) kubectl label node "$node" "$mark-" ;;
        taint) kubectl taint node "$node" "$mark-" ;;
        annotation) kubectl annotate node "$node" "${mark#f:}-" ;;
        condition)
            kubectl patch node "$node" --subresource status --type strategic --patch \
                '{"status":{"conditions":[{"type":"'"$mark"'","$patch":"delete"}]}}'
            ;;
        esac </dev/null
    done

volcano=$(kubectl get crd hypernodes.topology.volcano.sh --ignore-not-found --output name)
if [ -n "$volcano" ]; then
    kubectl delete hypernodes.topology.volcano.sh --selector volcano.sh/network-topology-source=nodeagent
fi
groups=$(kubectl get crd nodefeaturegroups.nfd.k8s-sigs.io --ignore-not-found --output name)
if [ -n "$groups" ]; then
    kubectl delete nodefeaturegroups.nfd.k8s-sigs.io --all-namespaces --selector app.kubernetes.io/managed-by=nodeagent
fi
kubectl delete configmaps --all-namespaces --field-selector metadata.name=nodeagent-slurm-topology \
    --selector app.kubernetes.io/managed-by=nodeagent
# The kubelet deletes them 30 s after the agent has ended; a kubelet that is down does not.
case $dra in
*'"resourceslices"'*) kubectl delete resourceslices.resource.k8s.io --field-selector spec.driver=nodeagent.io ;;
esac
kubectl delete lease nodeagent-controller --namespace "$namespace" --ignore-not-found
kubectl delete crd nodelinks.nodeagent.io railpartners.nodeagent.io --ignore-not-found
