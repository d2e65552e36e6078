{{- define "kvwatch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvwatch.fullname" -}}
{{- $name := include "kvwatch.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of what is made from a file: (list . path ending). The file kvwatch.* has the release's own name. Not cut, or two were one. */}}
{{- define "kvwatch.filename" -}}
{{- $stem := index . 1 | base | trimSuffix (index . 2) | trimPrefix "kvwatch" -}}
{{- printf "%s-%s" (include "kvwatch.fullname" (index . 0)) ($stem | trimPrefix "-") | trimSuffix "-" -}}
{{- end -}}

{{/* Refuses a chart without what it is asked for: (list . glob). Whoever drops links, as Flux does with a Git repository, drops the files. */}}
{{- define "kvwatch.needFiles" -}}
{{- if not ((index . 0).Files.Glob (index . 1)) -}}
{{- fail (printf "no %s in this copy of the chart, whose links were not followed: install what `helm package` makes" (index . 1)) -}}
{{- end -}}
{{- end -}}

{{- define "kvwatch.selector" -}}
app.kubernetes.io/name: {{ include "kvwatch.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvwatch.labels" -}}
{{ include "kvwatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kvwatch.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvwatch.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What the pods of engines carry, and no other release's: two monitors of one pod would count everything twice. */}}
{{- define "kvwatch.sidecarLabels" -}}
{{- toYaml (.Values.sidecar.podLabels | default (dict "kvwatch" (include "kvwatch.fullname" .))) -}}
{{- end -}}

{{/* All targets; a list whose entries are all commented out is null. */}}
{{- define "kvwatch.targets" -}}
{{- with concat (.Values.targets | default list) (.Values.extraTargets | default list) }}{{ toYaml . }}{{ else }}[]{{ end -}}
{{- end -}}

{{/* kvwatch.yaml: the settings, then all targets. */}}
{{- define "kvwatch.config" -}}
{{- with .Values.config }}
{{- toYaml . }}
{{ end -}}
targets:
{{- include "kvwatch.targets" . | nindent 2 }}
{{- end -}}

{{/* The container, the same in every mode. */}}
{{- define "kvwatch.container" -}}
name: kvwatch
image: "{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ with .Values.image.digest }}@{{ . }}{{ end }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if eq .Values.mode "sidecar" }}
restartPolicy: Always
{{- end }}
args: [serve, --config, /etc/kvwatch/kvwatch.yaml]
{{- if eq .Values.mode "daemonset" }}
env:
  - name: NVIDIA_VISIBLE_DEVICES
    value: {{ .Values.nvidia.visibleDevices | quote }}
  - name: NVIDIA_DRIVER_CAPABILITIES
    value: utility
{{- end }}
ports:
  - name: kvwatch
    containerPort: 9477
startupProbe:
  httpGet:
    path: /healthz
    port: kvwatch
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /healthz
    port: kvwatch
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /readyz
    port: kvwatch
  timeoutSeconds: 5
  failureThreshold: 12
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: kvwatch
    mountPath: /etc/kvwatch
    readOnly: true
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What the container mounts. */}}
{{- define "kvwatch.volumes" -}}
- name: kvwatch
  configMap:
    name: {{ include "kvwatch.fullname" . }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
